"""Train softmax regression on digits at 100 clients, with and without client-level differential privacy.

python examples/private/train.py [epsilon]
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

from securefed.defenses import calibrate, chain, clip, gaussian
from securefed.errors import BudgetSpent
from securefed.parties import SumClient, SumServer, SumTerms

CLIENTS, ROUNDS, TEST_ROWS, LOCAL_STEPS, RATE, NORM = 100, 20, 397, 5, 1.0, 2.0
EPSILON = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
DIGITS = load_digits()
X, Y = DIGITS.data / 16, np.eye(10)[DIGITS.target]


def local_training(weights, rows):
    """Take gradient steps of softmax regression on one client's rows."""
    x, y = X[rows], Y[rows]
    for _ in range(LOCAL_STEPS):
        scores = np.exp(x @ weights - (x @ weights).max(1, keepdims=True))
        weights = weights - RATE * x.T @ (scores / scores.sum(1, keepdims=True) - y) / len(x)
    return weights


def run(noise_multiplier, epsilon):
    """Train until the rounds are over or the budget is spent; return rounds, epsilon and accuracy."""
    model = {"w": np.zeros((X.shape[1], 10))}
    noise = (gaussian(noise_multiplier),) if noise_multiplier else ()
    terms = SumTerms.like(model, clients=CLIENTS, defense=chain(clip(NORM), *noise), epsilon=epsilon)
    clients = [SumClient(terms, number) for number in range(CLIENTS)]
    server, rounds = SumServer(terms), 0
    try:
        for rounds in range(1, ROUNDS + 10):  # the budget ends the private run, not this number
            if not noise and rounds > ROUNDS:
                break
            server.open(model)
            while server.result is None:
                replies = {}
                for number, request in server.outgoing.items():
                    update = {"w": local_training(model["w"], slice(TEST_ROWS + number, None, CLIENTS))}
                    replies[number] = clients[number].receive(request, update, base=model)
                server.receive(replies)
            model = server.result.like(model)
    except BudgetSpent as error:
        print(f"stopped: {error}")
    accuracy = ((X[:TEST_ROWS] @ model["w"]).argmax(1) == DIGITS.target[:TEST_ROWS]).mean()
    return rounds - 1, server.epsilon, accuracy


if __name__ == "__main__":
    multiplier = calibrate(EPSILON, 1e-5, ROUNDS)
    for name, settings in (("clipped", (0.0, None)), ("private", (multiplier, EPSILON * (1 + 1e-6)))):
        rounds, epsilon, accuracy = run(*settings)
        print(f"{name}: accuracy {accuracy:.4f} after {rounds} rounds, epsilon {epsilon:.4f}")
