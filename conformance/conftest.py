"""Registers the suite's pytest options when this folder is what pytest is pointed at."""

from __future__ import annotations

import pytest


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    if not pluginmanager.hasplugin("conformance.plugin"):
        pluginmanager.import_plugin("conformance.plugin")
