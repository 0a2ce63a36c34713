"""Make the sums of a run at server and clients, and run a federation as a loop over sums.

One core makes every sum; it knows no algorithm and no transport:

    sum_facts        what all parties agree on: defence, tensors of each kind of exchange, schedule, rule of sums
    sum_run          the server's sums, one after the other: cohort, attempts, budget, history, outcome of the last sum
    open_exchange    one attempt at a sum at the server, stage by stage
    sum_node         a client: it checks a request, uses the exchange up, uploads, and commits what was counted

Two pairs of parties stand on it. `Server` and `ClientNode` (`Federation`, `flower.serve` and `client_app`) add an
algorithm: contributions are computed from the broadcast, and what follows from a sum is the next one. `SumServer` and
`SumClient` (`securefed.parties`, and Flower's `SecureStrategy` and `secure_mod`) add weights, files and results for
sums that a caller's own code computes. Evaluations, revealed scalars and outcomes that clients need are facts of a sum
too; a plain sum has none.
"""
