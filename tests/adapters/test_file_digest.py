import pytest

from tensorrt_lora.adapters.adapter_error import AdapterError, AdapterProblems
from tensorrt_lora.adapters.file_digest import FileDigest


def _digest(directory, *names):
    digest = FileDigest(directory, AdapterProblems("a1", str(directory)))
    for name in names:
        digest.read(name)
    return digest.hexdigest()


def test_the_digest_is_that_of_names_and_contents(tmp_path):
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "b").write_bytes(b"3")
    (tmp_path / "c").write_bytes(b"12")
    assert _digest(tmp_path, "a", "b") == _digest(tmp_path, "a", "b")
    assert len({_digest(tmp_path, *names) for names in ("a", "c", "ab", "ba", "cb")}) == 5
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"23")
    assert _digest(tmp_path, "a", "b") != _digest(tmp_path, "c", "b")


def test_a_file_is_read_whole_and_with_a_limit(tmp_path):
    (tmp_path / "a").write_bytes(bytes(range(200)))
    digest = FileDigest(tmp_path, AdapterProblems("a1", "/a1"))
    assert digest.read("a", max_bytes=200).tolist() == list(range(200))
    with pytest.raises(AdapterError, match="a has 200 bytes, at most 199 are read; this is no such file"):
        digest.read("a", max_bytes=199)


@pytest.mark.parametrize("name", ["gone", "."])
def test_what_is_no_file(tmp_path, name):
    with pytest.raises(AdapterError, match="is not there or not a file"):
        FileDigest(tmp_path, AdapterProblems("a1", "/a1")).read(name)
