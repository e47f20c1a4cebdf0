"""Trains forests on real data sets, and writes what their own libraries predict of the sets' test rows: `python make_real.py FOLDER XGBOOST
LIGHTGBM`, with checkouts of XGBoost and LightGBM, whose own examples these are: mushrooms (agaricus), and rows for two classes, five
classes, numbers and ranks. The others are those that scikit-learn brings: iris, wine, breast cancer, digits and diabetes.

Needs what `make_models.py` needs; the models in `models` were made with the same releases. Of each test set, the first rows are kept.
"""

import json
import sys
from pathlib import Path

import lightgbm
import numpy as np
import treelite
import xgboost
from sklearn import datasets, ensemble, model_selection

#: How many rows of each test set are kept.
ROWS = 50
ROUNDS = 5
BOOSTED = {"num_threads": 1, "verbose": -1, "num_leaves": 15, "deterministic": True, "seed": 1}


class Cases:
    """Models with test rows and what their libraries predict of them."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.all = []

    def add(self, file, kind, rows, expected):
        rows = np.asarray(rows, np.float32)
        expected = np.asarray(expected, np.float64).reshape(len(rows), -1)
        plain = [[int(value) if value == int(value) else float(str(value)) for value in row] for row in rows]
        name = Path(file).stem
        self.all.append({"name": name, "file": file, "model_type": kind, "rows": plain, "expected": expected.tolist()})

    def xgboost(self, name, train, labels, test, **parameters):
        model = xgboost.train({"nthread": 1, "max_depth": 5, "seed": 1, **parameters}, xgboost.DMatrix(train, labels), ROUNDS)
        model.save_model(self.folder / f"real_xgb_{name}.ubj")
        self.add(f"real_xgb_{name}.ubj", "xgboost_ubj", test[:ROWS], model.predict(xgboost.DMatrix(test[:ROWS])))

    def lightgbm(self, name, train, labels, test, objective, group=None, **parameters):
        data = lightgbm.Dataset(train, labels, group=group)
        model = lightgbm.train({**BOOSTED, "objective": objective, **parameters}, data, ROUNDS)
        model.save_model(self.folder / f"real_lgb_{name}.txt")
        # The server gets the features in single precision.
        rows = np.asarray(test[:ROWS], np.float32)
        self.add(f"real_lgb_{name}.txt", "lightgbm", rows, model.predict(rows.astype(np.float64)))

    def sklearn(self, name, train, labels, test, is_class):
        options = {"n_estimators": ROUNDS, "max_depth": 6, "random_state": 1}
        model = (ensemble.RandomForestClassifier if is_class else ensemble.RandomForestRegressor)(**options)
        model.fit(train, labels)
        expected = model.predict_proba(test[:ROWS]) if is_class else model.predict(test[:ROWS])
        treelite.sklearn.import_model(model).serialize(str(self.folder / f"real_sk_{name}.tl"))
        self.add(f"real_sk_{name}.tl", "treelite_checkpoint", test[:ROWS], expected)


def libsvm(file):
    """Labels and rows of a file of `label index:value ...`; indices that are missing are zero."""
    lines = [line.split() for line in Path(file).read_text().splitlines()]
    labels = np.array([float(line[0]) for line in lines])
    pairs = [[field.split(":") for field in line[1:]] for line in lines]
    rows = np.zeros((len(lines), 1 + max(int(index) for line in pairs for index, _ in line)), np.float32)
    for row, line in zip(rows, pairs, strict=True):
        for index, value in line:
            row[int(index)] = float(value)
    return labels, rows


def table(file):
    """Labels and rows of a table whose first column is the label."""
    values = np.loadtxt(file)
    return values[:, 0], values[:, 1:]


def main():
    cases, of_xgboost, of_lightgbm = Cases(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    labels, train = libsvm(of_xgboost / "demo/data/agaricus.txt.train")
    _, test = libsvm(of_xgboost / "demo/data/agaricus.txt.test")
    test = test[:, : train.shape[1]]
    cases.xgboost("agaricus", train, labels, test, objective="binary:logistic")
    cases.lightgbm("agaricus", train, labels, test, "binary")
    examples = of_lightgbm / "examples"
    for folder, name, objective, more in (
        ("binary_classification", "binary", "binary", {}),
        ("regression", "regression", "regression", {}),
        ("multiclass_classification", "multiclass", "multiclass", {"num_class": 5}),
    ):
        labels, train = table(examples / folder / f"{name}.train")
        _, test = table(examples / folder / f"{name}.test")
        cases.lightgbm(f"example_{name}", train, labels, test, objective, **more)
        objectives = {"binary": "binary:logistic", "regression": "reg:squarederror", "multiclass": "multi:softprob"}
        cases.xgboost(f"example_{name}", train, labels, test, objective=objectives[name], **more)
    labels, train = libsvm(examples / "lambdarank/rank.train")
    _, test = libsvm(examples / "lambdarank/rank.test")
    wider = np.zeros((len(test), train.shape[1]), np.float32)
    wider[:, : test.shape[1]] = test[:, : train.shape[1]]
    group = np.loadtxt(examples / "lambdarank/rank.train.query").astype(int)
    cases.lightgbm("example_rank", train, labels, wider, "lambdarank", group=group)
    for name in ("iris", "wine", "breast_cancer", "digits", "diabetes"):
        rows, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
        train, test, labels, _ = model_selection.train_test_split(rows.astype(np.float32), labels, random_state=1)
        count = len(np.unique(labels))
        is_class = name != "diabetes"
        several = {"num_class": count} if is_class and count > 2 else {}
        kind = "regression" if not is_class else "multiclass" if several else "binary"
        objectives = {"regression": "reg:squarederror", "multiclass": "multi:softprob", "binary": "binary:logistic"}
        cases.xgboost(name, train, labels, test, objective=objectives[kind], **several)
        cases.lightgbm(name, train, labels, test, kind, **several)
        cases.sklearn(name, train, labels, test, is_class)
    text = json.dumps(cases.all, separators=(",", ":"))
    (cases.folder / "real_cases.json").write_text(text.replace("},{", "},\n{") + "\n")


if __name__ == "__main__":
    main()
