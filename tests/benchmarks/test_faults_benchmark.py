from benchmarks import faults


def test_what_is_not_as_asked_is_said():
    assert faults._row("fault", "happened", True).met
    assert not faults._row("fault", "happened", False).met


def test_errors_of_another_kind_are_not_as_asked(tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    (fine,), (wrong,) = (list(faults._refused("file", path, kind)) for kind in (FileExistsError, PermissionError))
    said = "FileExistsError: file is a file; a store is a folder. Choose another store"
    assert (fine.note, fine.met) == (wrong.note, not wrong.met) == (said, True)
