"""The judge as an HTTP service: ``kernel-coder serve``. See ``docs/serve.md``."""
