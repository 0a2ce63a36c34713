"""Reconstruct Gram matrices from FAPS, whose messages are masked products.

`consensus_attack` attacks one client's messages, or a sum as if it were one client's; `summed_clients` attacks the
single clients of a sum. The first estimates S near consensus (`near_consensus`), solves for it round by round
(`round_by_round`) or fits a simulated client (`simulated_client`, `client_equations`, `client_fit`).
"""
