"""Checks of arguments. Their errors have the parameter's name."""

import operator
from typing import SupportsIndex


def priority_of(priority: SupportsIndex) -> int:
    """Returns a priority as an int from 0 to 3."""
    try:
        number = operator.index(priority)
    except TypeError:
        raise TypeError(f"priority must be an int, not {type(priority).__name__}") from None
    if not 0 <= number <= 3:
        raise ValueError("priority must be from 0 to 3")
    return number


def fraction_of(name: str, value: float) -> float:
    """Returns a number above 0 and at most 1."""
    if not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1")
    return value


def seconds_of(name: str, value: float) -> float:
    """Returns a number of seconds: not negative, and not NaN."""
    if not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not value >= 0:
        raise ValueError(f"{name} must not be negative")
    return value
