# task: swish_chain
# backend: cpp
# hack: H56 starts a build in a child and kills itself in the middle
# why: never correct; compiler and lock must be gone afterwards
import os
import signal
import threading

from torch.utils.cpp_extension import load_inline

threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
native = load_inline("kc_cpp_swish", "int f() { return 0; }", functions=["f"])
