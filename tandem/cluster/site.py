"""A party on Ray as clients ask it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.exceptions import RayActorError

from tandem.actors.ray_handles import RayActors
from tandem.errors import CallError, TandemError
from tandem.sites.port import SitePort


class RaySite(SitePort):
    """A party on Ray, whose actors are found again after one of them has died: it may have been replaced."""

    def __init__(self, actors: RayActors, find: Callable[[], RayActors] | None = None) -> None:
        """find: None where nobody replaces them. Raises TandemError while that has not been done."""
        self._actors, self._find = actors, find
        self._has_lost = False

    async def call(self, role: str, method: str, *arguments: Any) -> Any:
        """As every site's."""
        if self._has_lost and self._find is not None:
            try:
                self._actors = self._find()
            except TandemError as error:
                raise CallError(str(error)) from None
            self._has_lost = False
        try:
            return await self._actors[role].call(method, *arguments)
        except CallError as error:
            self._has_lost = self._has_lost or isinstance(error.__cause__, RayActorError)
            raise
