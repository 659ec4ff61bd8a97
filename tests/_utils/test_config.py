"""Settings from TOML and mappings: what fits, and words for what does not."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from peaccel._utils import config


@dataclass(frozen=True)
class Inner:
    rates: tuple[float, float] = (0.0, 1.0)
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Outer:
    count: int
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    place: Path = Path(".")
    on: bool = False
    widths: tuple[int, ...] = ()
    inner: Inner = Inner()


def test_values_become_what_the_fields_are():
    read = config.from_mapping(
        {"count": 3, "share": 1, "place": "x/y", "widths": [1, 2], "inner": {"rates": [0, 2], "kind": "b"}}, Outer
    )
    assert read == Outer(3, 1.0, Path("x/y"), False, (1, 2), Inner((0.0, 2.0), "b"))
    assert isinstance(read.share, float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cuont = 1", r"recipe.toml: unknown key 'cuont'; did you mean 'count'"),
        ("count = 1\n[inner]\nrate = [1, 2]", r"recipe.toml: inner: unknown key 'rate'; did you mean 'rates'"),
        ("share = 0.5", r"recipe.toml: object missing required field `count`"),
        ("count = '1'", r"recipe.toml: count: expected `int`, got `str`"),
        ("count = true", r"recipe.toml: count: expected `int`, got `bool`"),
        ("count = 1\nshare = 2", r"recipe.toml: share: expected `float` <= 1"),
        ("count = 1\n[inner]\nrates = [1]", r"recipe.toml: inner.rates: expected `array` of length 2, got 1"),
        ("count = 1\n[inner]\nkind = 'c'", r"recipe.toml: inner.kind: invalid enum value 'c'"),
        ("count = 1\nplace = 3", r"recipe.toml: place: expected Path, got 3"),
        ("count = 1\ninner = 2", r"recipe.toml: inner: expected `object`, got `int`"),
        ("count =", r"recipe.toml: not TOML"),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(tmp_path, text, message):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        config.read(path, Outer)
    assert "\n" not in str(error.value)


def test_merging_goes_table_by_table():
    base = {"a": 1, "t": {"x": 1, "y": {"z": 2}}}
    assert config.merge(base, {"t": {"y": {"w": 3}}, "b": 2}) == {"a": 1, "b": 2, "t": {"x": 1, "y": {"z": 2, "w": 3}}}
    assert base == {"a": 1, "t": {"x": 1, "y": {"z": 2}}}
    assert config.merge({"t": 1}, {"t": {"x": 1}}) == {"t": {"x": 1}}
