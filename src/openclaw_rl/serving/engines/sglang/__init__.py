"""SGLang: an engine for GPUs, started here or wherever it runs; the engine process speaks for it.

gateway, trainer, judge ──our HTTP──► server ─► client ──its HTTP──► SGLang
                                                 ├ wire: bodies and answers, pure
                                                 ├ replies: one answer, from pieces to events
                                                 ├ seen: what the server said when it was last looked at
                                                 └ versions: which there are, who uses them, how they come and go
"""
