"""Nothing: SGLang imports the name for models that hear; PyPI's build would look for a CUDA torch."""
