from benchmarks import faults


def test_what_is_not_as_asked_is_said(capsys):
    faults._row("fault", "happened", True)
    faults._row("fault", "happened", False)
    assert capsys.readouterr().out == "| fault | happened | yes |\n| fault | happened | NO |\n"


def test_errors_of_another_kind_are_not_as_asked(tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("mine")
    faults._refused("file", path, FileExistsError)
    faults._refused("file", path, PermissionError)
    said = "| file | FileExistsError: file is a file; a store is a folder. Choose another store |"
    assert capsys.readouterr().out == f"{said} yes |\n{said} NO |\n"
