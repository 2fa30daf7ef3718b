"""Codecs and policies: the settings that name one, be it a plugin or code of one's own, and how it is imported.

Only a party's own settings name code. What comes over the link or from a client never does.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any, cast

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from tandem import plugins
from tandem.config.checks import STRICT, Settings, plugin_or
from tandem.errors import ConfigError, did_you_mean

Parameters = dict[str, bool | int | float | str]
"""Arguments of FUNCTION, by name."""


DEPTH = 8
MAX_DEPTH = 1024
"""Tokens of a query's first race list: by default, and at most."""
PLACEMENTS = ("device", "cloud", "greedy", "mirror")
LENGTH_POLICIES = ("fixed",)
"""Policies of the core, by name; every other one is an extension."""
AUTO = "auto"
WHOLE = "top_p"
"""The codec of whole distributions that "auto" stands for."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CodecConfig(Settings):
    """The codec that compresses distributions before a draft is drawn.

    "auto" decides twice: votes are race lists, or ids by the rule `lottery`, where several vote, and elsewhere whole
    distributions go through top_p.
    """

    name: Annotated[str, plugin_or("codec", AUTO)] = AUTO
    """auto: race lists or, by lottery, ids where several vote, else top_p; or the name of a plugin: top_p, top_k,
    k_sqs, c_sqs, lattice, or of a package"""
    parameters: Parameters = Field(default_factory=dict)
    """parameters of the codec; auto: depth (8) of a query's first race list, and those of top_p; top_p: p (0.8),
    max_tokens (4096); top_k: k (16), rest (renormalise)"""

    @model_validator(mode="after")
    def _check_depth(self) -> CodecConfig:
        depth = self.parameters.get("depth", DEPTH)
        if self.name == AUTO and (type(depth) is not int or not 1 <= depth <= MAX_DEPTH):
            raise ConfigError(
                f'The parameter depth of codec.name = "auto" must be a whole number of at least 1 and of at most '
                f"{MAX_DEPTH}, but it is {depth!r}; the default is {DEPTH}."
            )
        return self

    @property
    def race_depth(self) -> int:
        """Tokens of a query's first race list, adapted from then on; 0: votes are whole distributions."""
        return cast(int, self.parameters.get("depth", DEPTH)) if self.name == AUTO else 0

    @property
    def whole_parameters(self) -> Parameters:
        """Parameters of the codec of whole distributions."""
        return {key: value for key, value in self.parameters.items() if (self.name, key) != (AUTO, "depth")}

    @property
    def address(self) -> str:
        """MODULE:FUNCTION of the codec of whole distributions. Raises ConfigError for an unknown name."""
        return plugins.address_of("codec", WHOLE if self.name == AUTO else self.name)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SchedulerConfig(Settings):
    """Parameters of a policy of your own, where `decoding.placement` or `decoding.length_policy` names one.

    No mode asks both: placement is chosen in mode dual, lengths are in the others.
    """

    parameters: Parameters = Field(default_factory=dict)
    """parameters of a placement policy, or of a length policy, of your own"""


def is_extension(policy: str) -> bool:
    """Whether a setting names a policy that is not the core's."""
    return policy not in (*PLACEMENTS, *LENGTH_POLICIES)


def call(
    setting: str, address: str, parameters: Mapping[str, Any], table: str, where: str, **given: Any
) -> Any:
    """Call FUNCTION of "MODULE:FUNCTION". Raises ConfigError.

    setting, table: the keys that name the function and its parameters. where: the importing process, in words.
    given: further arguments that every such function takes.
    """
    module_name, _, function_name = address.partition(":")
    function = _function(_import(module_name, setting, address, where), function_name, setting, address)
    _check_parameters(function, parameters, given, table, address)
    try:
        return function(**given, **parameters)
    except ConfigError:
        raise  # it says what is wrong
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(
            f"{address} ({setting}) failed with {_reason(error)}; correct it or [{table}]."
        ) from error


def check_has(made: object, names: tuple[str, ...], setting: str, address: str, what: str) -> None:
    """ConfigError unless an object has all attributes of what it must be."""
    lacking = [name for name in names if not hasattr(made, name)]
    if lacking:
        raise ConfigError(
            f"{address} ({setting}) must return a {what}, but its {type(made).__name__} has no {', '.join(lacking)}."
        )


def _import(name: str, setting: str, address: str, where: str) -> ModuleType:
    try:
        return import_module(name)
    except Exception as error:  # a module may raise anything
        raise ConfigError(
            f"{where} cannot import {name} of {setting} = {address!r} ({_reason(error)}); install it there in the "
            "environment of tandem-rag, start in the folder that holds it, or add that folder to PYTHONPATH."
        ) from error


def _function(module: ModuleType, name: str, setting: str, address: str) -> Any:
    function = getattr(module, name, None)
    if callable(function):
        return function
    names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    remedy = did_you_mean(name, names) if names else "add it."
    raise ConfigError(f"{module.__name__} has no function {name!r} ({setting} = {address!r}); {remedy}")


def _check_parameters(
    function: Any, parameters: Mapping[str, Any], given: Mapping[str, Any], table: str, address: str
) -> None:
    declared = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in declared.values()):
        return
    settable = [name for name in declared if name not in given]
    for name in parameters:
        if name not in settable:
            remedy = did_you_mean(name, settable) if settable else "it takes none."
            raise ConfigError(f"{address} has no parameter {name!r} ([{table}]); {remedy}")
    for name in settable:
        if name not in parameters and declared[name].default is inspect.Parameter.empty:
            raise ConfigError(f"{address} needs the parameter {name!r}; add it to [{table}].")


def _reason(error: Exception) -> str:
    """An error's kind and its first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
