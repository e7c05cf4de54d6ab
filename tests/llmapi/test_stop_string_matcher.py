import pytest

from tensorrt_lora.llmapi.stop_string_matcher import StopStringMatcher


@pytest.mark.parametrize(
    ("stop", "text", "num_new", "expected"),
    [
        ([], "abc", 3, None),
        (["x"], "abc", 3, None),
        (["c"], "abc", 1, (2, "c")),
        (["bcd"], "abcd", 1, (1, "bcd")),  # started in earlier text
        (["ab"], "abcd", 1, None),  # ended in earlier text, so it was no match then
        (["d", "bc"], "abcd", 4, (1, "bc")),  # complete first
        (["cd", "bcd"], "abcd", 4, (1, "bcd")),  # complete together: the longest
        (["abcde", "c"], "abcde", 5, (2, "c")),  # the long one starts first but is complete later
        (["a"], "aaa", 3, (0, "a")),
        (["\n\n"], "x\n\n\n", 3, (1, "\n\n")),
    ],
)
def test_find(stop: list[str], text: str, num_new: int, expected: tuple[int, str] | None) -> None:
    assert StopStringMatcher(stop).find(text, num_new) == expected


@pytest.mark.parametrize(
    ("stop", "text", "expected"),
    [
        ([], "abc", 0),
        (["abc"], "", 0),
        (["xyz"], "abc", 0),
        (["cde"], "abc", 1),
        (["abcd", "c!"], "abc", 3),
        (["aab"], "aaa", 2),
        (["STOP"], "S", 1),
    ],
)
def test_num_held(stop: list[str], text: str, expected: int) -> None:
    assert StopStringMatcher(stop).num_held(text) == expected


@pytest.mark.parametrize("stop", [["aab", "ba"], ["abab"], ["b"], ["aa", "aaa"]])
def test_shown_text_never_shrinks_and_pieces_do_not_matter(stop: list[str]) -> None:
    """Over all 255 texts of a and b up to 7 letters: letter by letter finds what the whole text finds."""
    matcher = StopStringMatcher(stop)
    for number in range(1, 2**8):
        text = bin(number)[3:].replace("0", "a").replace("1", "b")
        shown, found = 0, None
        for end in range(1, len(text) + 1):
            found = matcher.find(text[:end], 1)
            if found is not None:
                assert found[0] >= shown
                break
            assert end - matcher.num_held(text[:end]) >= shown
            shown = end - matcher.num_held(text[:end])
        assert matcher.find(text, len(text)) == found
