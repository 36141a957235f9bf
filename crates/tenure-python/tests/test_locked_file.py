import errno
import os

import pytest
import tenure


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(bytes(range(256)) * 4096)
    return path


def test_file_reads_as_it_is(file):
    with tenure.LockedFile(file, budget=1 << 20) as locked:
        view = memoryview(locked)
        assert view.readonly and len(locked) == 1 << 20
        assert bytes(view) == file.read_bytes()
        assert 0 < locked.locked_bytes <= 1 << 20
        assert locked.resident_bytes >= locked.locked_bytes
        assert locked.budget == 1 << 20
        with pytest.raises(BufferError):
            locked.release()
        view.release()
    assert len(locked) == 0
    with pytest.raises(ValueError, match="released"):
        memoryview(locked)
    with pytest.raises(ValueError, match="released"):
        locked.locked_bytes
    with pytest.raises(ValueError, match="released"):
        with locked:
            raise AssertionError("entered")


def test_bad_paths_are_errors(tmp_path):
    missing = tmp_path / "missing"
    with pytest.raises(FileNotFoundError) as raised:
        tenure.LockedFile(missing)
    error = raised.value
    assert (error.errno, error.filename) == (errno.ENOENT, str(missing))
    with pytest.raises(ValueError, match="null byte"):
        tenure.LockedFile("a\0b")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path, "/dev/null"):
        with pytest.raises((OSError, ValueError)):
            tenure.LockedFile(path)
    with pytest.raises(TypeError):
        tenure.LockedFile(3.5)
