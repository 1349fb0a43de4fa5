"""On PYTHONPATH for every process that an engine test starts; see cpu_build."""

import cpu_build

cpu_build.install()
