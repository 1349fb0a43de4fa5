# The names of vLLM 0.32 that kvlayout's tests use; tests/engines/test_vllm_stubs.py compares them with the installed
# package. Following the real package takes mypy a minute.
__version__: str
