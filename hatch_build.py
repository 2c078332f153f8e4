"""Build hook: put the bill of materials (tools/sbom.py) into the wheel."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SbomHook(BuildHookInterface):
    """Writes the bill of materials to a temporary file that becomes part of .dist-info (PEP 770)."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the wheel is built."""
        tools = str(Path(self.root) / "tools")
        sys.path.insert(0, tools)
        try:
            import sbom
        finally:
            sys.path.remove(tools)
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / sbom.NAME
        path.write_text(sbom.render(Path(self.root)), encoding="utf-8")
        build_data["sbom_files"].append(str(path))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """After the wheel was built."""
        self.folder.cleanup()
