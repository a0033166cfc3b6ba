"""Registers the suite's pytest options for ``pytest --pyargs conformance``, and does nothing in any other run.

pytest loads the conftest of an installed package too late for options of its own, so the package has an entry point.
It looks at the command line and leaves every run alone that does not ask for this package by name.
"""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    options = early_config.known_args_namespace
    named = [str(argument).split("::")[0].split(".")[0] for argument in options.file_or_dir]
    if options.pyargs and "conformance" in named and not early_config.pluginmanager.hasplugin("conformance.plugin"):
        early_config.pluginmanager.import_plugin("conformance.plugin")
