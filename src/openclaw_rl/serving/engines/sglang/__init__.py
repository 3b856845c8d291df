"""SGLang: an engine for GPUs, in a process of its own or wherever it runs; asked over its own HTTP.

gateway ──► client ──HTTP──► SGLang        server: starts SGLang as a child of the engine's loop, or attaches
             ├ wire: bodies and answers, pure
             └ replies: one answer, from chunks to events
"""
