"""`make crash-test`: the whole deployment under load, its processes killed at random, and nothing may be lost.

The deployment is the real one, `openclaw-rl up` as a process of its own, on a tiny model: the embedded engine, the
`verdict_logits` judge, which asks that engine (so that a dead engine is felt by the judge, too, and starting it takes
half as long as with the encoder of the `classifier`), the trainer with its checkpoints, gate and publishing.

    recipe.toml     the deployment
    plan            which process is killed when, and at what work
    deployment      the person (or systemd) who starts `up` again; stops, looks at, and kills processes
    load            clients that converse, correct, retry, and note what they were given in a ledger
    look            what the record and the disk say from outside
    killer          carries the plan out and measures until each process worked again
    verify          the ledger against the record
    report          the table and the last line
"""
