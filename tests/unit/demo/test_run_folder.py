from __future__ import annotations

from pathlib import Path

import pytest

from bridge.errors import ConfigError
from pulsebridge.demo.run_folder import RunFolder


def test_a_folder_that_is_not_of_a_run_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no manifest"):
        RunFolder(tmp_path).manifest()
    RunFolder(tmp_path).manifest_file.write_text('{"v": 99}')
    with pytest.raises(ConfigError, match="version 99"):
        RunFolder(tmp_path).manifest()
