"""A state directory: one process at a time, for its user alone."""

import os

import pytest

from idiolect.core.files import write_document
from idiolect.core.knobs import SettingError
from idiolect.deploy.site.state import StateFolder


def test_it_is_held_by_one_process_and_names_it(tmp_path):
    first = StateFolder(tmp_path / "state")
    first.open()
    assert first.path.stat().st_mode & 0o777 == 0o700
    with pytest.raises(SettingError, match=f"in use by the process with the id {os.getpid()}"):
        StateFolder(tmp_path / "state").open()
    assert StateFolder(first.path).running() and StateFolder(first.path).pid() == os.getpid()
    first.close()
    assert not StateFolder(first.path).running()
    StateFolder(first.path).open()


def test_a_folder_that_others_may_read_is_refused(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with pytest.raises(SettingError, match=r"can be read by others.*chmod 700"):
        StateFolder(folder).open()


def test_a_link_or_a_file_is_refused(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        with pytest.raises(SettingError):
            StateFolder(tmp_path / name).open()


def test_a_path_that_no_socket_can_have_is_refused(tmp_path):
    with pytest.raises(SettingError, match="choose a shorter directory"):
        StateFolder(tmp_path / ("x" * 120)).open()


def test_a_folder_of_something_else_is_no_state_directory(tmp_path):
    with pytest.raises(SettingError, match="is no state directory of a site"):
        StateFolder(tmp_path).site()
    write_document(tmp_path / "site.json", {"format": 2, "site": 7, "data": {}, "rules": {}})
    with pytest.raises(SettingError, match=r"site\.json: site must be a text, got a whole number"):
        StateFolder(tmp_path).site()
