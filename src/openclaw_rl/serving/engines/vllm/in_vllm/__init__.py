"""What is imported by vLLM's own workers, in its own interpreter: this folder is all of ours that they see."""
