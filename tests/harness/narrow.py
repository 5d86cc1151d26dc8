"""A proxy with few descriptors: `python -c LIMITED serve …`."""

from typing import Final

DESCRIPTORS: Final = 128
# The hard limit too: the proxy raises its soft one to it.
LIMITED: Final = (
    f"import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}));"
    "runpy.run_module('proxy', run_name='__main__', alter_sys=True)"
)
