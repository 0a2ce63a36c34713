"""Reconstruct Gram matrices from FAPS, whose messages are masked products.

FAPS is federated PCA. A client has rows A^T and the Gram matrix S = A A^T, (features, features), which the attacks
recover. In each round the server broadcasts an orthonormal basis Z, (features, rank); the client sends the product of Z
with a matrix Q that masks S, and depends on S and on a subspace that the client keeps.

`consensus_attack` attacks one client's messages, or a sum as if it were one client's; `summed_clients` attacks the
single clients of a sum. The first estimates S near consensus, where the client's subspace is that of Z
(`near_consensus`), solves for it round by round (`round_by_round`) or fits a simulated client (`simulated_client`,
`client_equations`, `client_fit`).
"""
