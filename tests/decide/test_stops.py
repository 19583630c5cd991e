"""Stop texts: nothing of one is ever shown, whatever the pieces."""

from __future__ import annotations

import itertools

import pytest

from mlxcel.decide.stops import StopMatcher


def shown(stops, pieces):
    matcher = StopMatcher(stops)
    out = "".join(matcher.feed(piece) for piece in pieces)
    if not matcher.stopped:
        out += matcher.flush()
    return out, matcher.stopped


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        ((), ["abc", "def"], ("abcdef", False)),
        (("beta gamma",), ["alpha be", "ta ga", "mma delta"], ("alpha ", True)),
        (("beta gamma",), ["alpha be", "ta gx"], ("alpha beta gx", False)),
        (("DEFGHIJ",), list("ABCDEFGHIJK"), ("ABC", True)),
        (("ab", "abc"), list("xabc"), ("x", True)),
        (("abcd", "bc"), list("xabcd"), ("xa", True)),
        (("aab",), list("aaab"), ("a", True)),
        (("\n\n",), ["a\n", "b\n", "\nc"], ("a\nb", True)),
        (("é",), ["caf", "é"], ("caf", True)),
    ],
)
def test_cases(stops, pieces, expected):
    assert shown(stops, pieces) == expected


@pytest.mark.parametrize("stops", [("ab",), ("aba", "bb"), ("a",), ("abab", "ba")])
def test_every_text_and_every_cut(stops):
    """By single characters: the shown text is what stands before the first stop to complete."""
    for length in range(1, 7):
        for letters in itertools.product("ab", repeat=length):
            text = "".join(letters)
            ends = [
                (at + len(stop), at)
                for stop in stops
                for at in range(length)
                if text.startswith(stop, at)
            ]
            end = min(ends, default=None)
            expected = (text, False)
            if end is not None:
                begin = min(at for stop_end, at in ends if stop_end == end[0])
                expected = (text[:begin], True)
            assert shown(stops, text) == expected


def test_nothing_of_a_stop_is_shown_early():
    matcher = StopMatcher(["<|end|>"])
    assert matcher.feed("hello <|e") == "hello "
    assert matcher.feed("n") == ""
    assert matcher.feed("x") == "<|enx"
    assert matcher.feed("<") == ""
    assert matcher.flush() == "<"
