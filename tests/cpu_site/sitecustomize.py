"""On PYTHONPATH for every process that an engine test starts; see cpu_build."""

import importlib

importlib.import_module("cpu_build").install()
