"""vLLM behind the engine protocol.

The engine process starts a vLLM server (or finds one that runs), and speaks for it: gateway, trainer and judge ask
this process, in the same HTTP as that of the embedded engine, and only this process asks vLLM. So there is one place
that counts which request uses which version, that loads and unloads them, that pauses vLLM to swap a whole model, and
that knows at which token this happened; and the gateway needs neither a tokenizer nor a chat template.

- `launch`: the command and the environment of a vLLM server. Pure.
- `process`, `tied`: the server as a child that ends with us.
- `probe`: whether a server does what we need.
- `wire`: what is sent to vLLM and what comes back, as plain values. Pure.
- `api`: vLLM's HTTP.
- `versions`: which versions vLLM has loaded under which names, and who uses them.
- `swap`: the model itself replaced in place, and put back where that fails.
- `in_vllm`: what vLLM's own workers are given.
- `files`: a version's files.
- `client`: `VllmEngine`, the adapter.
- `server`: the engine process.
"""
