"""Two methods on made-up clients, side by side. Takes seconds; writes compare_methods.png to the current folder."""

import matplotlib.pyplot as plt
import numpy as np

import cgpfl

rng = np.random.default_rng(0)
rules = rng.normal(size=(2, 5))  # clients are of two kinds, each with a rule of its own


def client(kind):
    """x_train, y_train, x_test, y_test of a client of this kind: noisy signs of a linear function."""
    x = rng.normal(size=(80, 5))
    y = (x @ rules[kind] + 0.3 * rng.normal(size=80) > 0).astype(int)
    return x[:60], y[:60], x[60:], y[60:]


kinds = [u % 2 for u in range(10)]
clients = cgpfl.ClientData.from_arrays([client(kind) for kind in kinds], contexts=kinds)
params = {
    "fedavg": {"lr": 0.1},
    "cgpfl": {"lr": 0.1, "lam": 8.0, "contexts": 2},
}
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
for method, given in params.items():
    result = cgpfl.simulate(
        clients, model="mlr", method=method, rounds=15, seeds=[0, 1, 2], params=given, batch_size=10
    )
    rows = result.history[result.history["headline"]]  # the model that the method stands for
    mean, spread = (rows.groupby("round")["accuracy"].agg(what) for what in ("mean", "std"))
    axes.plot(mean.index, mean, label=f"{method} ({cgpfl.methods()[method].headline})")
    axes.fill_between(mean.index, mean - spread, mean + spread, alpha=0.2)
    print(f"{method:8} {100 * mean.iloc[-1]:.1f}% of the test samples right after round {mean.index[-1]}")
axes.set(xlabel="round", ylabel="test accuracy")
axes.legend()
figure.savefig("compare_methods.png", dpi=150)
plt.close(figure)
