"""What `import tandem` offers."""

from __future__ import annotations

import inspect

import tandem
from tandem import errors, events


def test_every_name_can_be_imported() -> None:
    assert tandem.__all__ == sorted(tandem.__all__)
    for name in tandem.__all__:
        assert getattr(tandem, name) is not None
    assert set(tandem.__all__) <= set(dir(tandem))


def test_every_error_and_every_event_is_public() -> None:
    raised = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__
    ]
    yielded = [kind.__name__ for kind in events.Event.__args__]
    assert set(raised) | set(yielded) <= set(tandem.__all__)
