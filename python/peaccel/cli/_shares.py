"""Shares that a user writes, in per cent or not."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

__all__ = ["share"]


def share(name: str, text: str) -> Decimal:
    """A share between 0 and 1 with all of its digits; ValueError names the option."""
    try:
        number = Decimal(text.strip().removesuffix("%").strip()) / (100 if text.strip().endswith("%") else 1)
    except InvalidOperation:
        number = Decimal("nan")
    if number.is_nan() or not 0 < number < 1:
        raise ValueError(f"--{name} is {text!r}, expected a share between 0 and 1, such as 1% or 0.01")
    return number
