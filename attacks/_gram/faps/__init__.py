"""Reconstruct Gram matrices from FAPS, whose messages are masked products.

FAPS is federated PCA. A client has rows A^T and the Gram matrix S = A A^T, (features, features), which the attacks
recover. In round k the server broadcasts an orthonormal basis Z_k, (features, rank). The client keeps a subspace X_k of
the same shape, X_0 = Z_0. From X = X_{k-1} it iterates V <- orth(H V), c_k times (the inner count, fixed or by a stop
rule), and the last V is X_k. It sends the masked product Y_k, and tr(Z_k^T S Z_k) for the server's stop rule:

    H = S + X W^T + W X^T + beta Z_k Z_k^T,   W = -(I - X X^T) S X,   beta = beta_scale lambda_1(S)   (12), (15), (16)
    Y_k = beta X_k X_k^T Z_k - X_k W_k^T Z_k - W_k X_k^T Z_k,   W_k the W at X_k                            (18), (19)

beta_scale is public, lambda_1 the largest eigenvalue, and an adaptive client may raise beta every fifth round.
Nothing here is random, so that every message is a function of S and of the broadcasts. The first one shows beta and so
lambda_1(S), since Z_0^T Y_0 = beta I. At consensus, where X_k = Z_k, Y_k = beta Z_k + (I - Z_k Z_k^T) S Z_k is linear
in S. The modules of this package use these symbols, G = -W, off(V, M) = (I - V V^T) M, and orth(N) for the Q of
N = Q R; in a `RoundView` the tensors named `BASIS`, `PRODUCT` and `CAPTURED` are Z_k, Y_k and tr(Z_k^T S Z_k).

`consensus_attack` attacks one client's messages, or a sum as if it were one client's: it estimates S near consensus
(`near_consensus`), solves for it round by round (`round_by_round`) or fits a simulated client (`simulated_client`,
`client_equations`, `client_fit`). `summed_clients` attacks the single clients of a sum.
"""
