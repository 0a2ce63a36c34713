"""Average scikit-learn's `partial_fit` estimators of four clients: `python examples/sklearn/train.py`."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from securefed import chain, secure_mean
from securefed.defenses import secure_aggregation

CLIENTS, ROUNDS, TEST_ROWS = 4, 5, 360
X, Y = load_digits(return_X_y=True)
X = X / 16


def train(average):
    models = [SGDClassifier(random_state=number) for number in range(CLIENTS)]
    for _ in range(ROUNDS):
        for number, model in enumerate(models):
            rows = slice(TEST_ROWS + number, None, CLIENTS)
            model.partial_fit(X[rows], Y[rows], classes=np.unique(Y))
        updates = [{"coef_": model.coef_, "intercept_": model.intercept_} for model in models]
        mean = average(updates, weights=[len(Y[TEST_ROWS + number :: CLIENTS]) for number in range(CLIENTS)])
        for model in models:
            model.coef_, model.intercept_ = mean["coef_"].copy(), mean["intercept_"].copy()
    return models[0]


def plain(updates, weights):
    return {name: np.average([update[name] for update in updates], axis=0, weights=weights) for name in updates[0]}


def secured(updates, weights):
    return secure_mean(updates, weights, chain(secure_aggregation()))


if __name__ == "__main__":
    found = {average.__name__: train(average) for average in (plain, secured)}
    scores = ", ".join(f"{name} {model.score(X[:TEST_ROWS], Y[:TEST_ROWS]):.4f}" for name, model in found.items())
    difference = max(abs(found["plain"].coef_ - found["secured"].coef_).ravel())
    print(f"accuracy {scores}; largest difference of a weight {difference:.1e}")
