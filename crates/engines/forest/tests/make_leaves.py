"""Trains models whose leaves have several values, or whose results are linear: `python make_leaves.py models`.

The models in `models` were made with the packages of `make_models.py`; with xgboost 2.1.4 and 1.7.6, lightgbm 3.3.5 and numpy 1.26.
XGBoost 1.7 adds ordinary trees, as old as they are served. The names of models have the version of their library.
`--scikit-learn` adds models of scikit-learn, by Treelite 4.
"""

import json
import sys

import lightgbm
import numpy as np
import xgboost
from make_models import Cases, classes, data, samples, target


def label(library, name=""):
    return f"{library.__name__}{library.__version__}_{name}"


def all_of_xgboost(cases):
    x = data(400)
    y = target(x)
    targets = np.stack([y, -y, y * 2], 1)

    forms = {"json": "xgboost_json", "ubj": "xgboost_ubj"}
    old_forms = {"deprecated": "xgboost"} if xgboost.__version__.startswith(("1.", "2.")) else {}

    def train(name, objective, y, forms=forms, explained=False, **options):
        parameters = {"nthread": 1, "max_depth": 3, "seed": 1, "objective": objective, **options}
        model = xgboost.train(parameters, xgboost.DMatrix(x, y), 3)
        rows = samples()
        expected = model.predict(xgboost.DMatrix(rows))
        values = model.predict(xgboost.DMatrix(rows), pred_contribs=True) if explained else None
        for form, kind in forms.items():
            file = f"{label(xgboost, name)}.{form}"
            model.save_model(cases.folder / file)
            cases.add(f"{label(xgboost, name)}_{form}", file, kind, rows, expected, values)

    if xgboost.__version__.startswith("1."):
        train("trees", "binary:logistic", y > 1, {**forms, **old_forms}, explained=True)
        train("tree_classes", "multi:softprob", classes(y), num_class=4, explained=True)
        train("tree_dart", "reg:squarederror", y, {**forms, **old_forms}, booster="dart", rate_drop=0.4, one_drop=1)
        train("tree_targets", "reg:squarederror", targets)
    else:
        vectors = {"multi_strategy": "multi_output_tree", "tree_method": "hist"}
        train("vectors", "reg:squarederror", targets, **vectors)
        train("vector_classes", "multi:softprob", classes(y), num_class=4, **vectors)
        train("vector_labels", "binary:logistic", targets > 1, **vectors)
    functions = {"booster": "gblinear", "explained": True}
    train("linear", "reg:squarederror", y, {**forms, **old_forms}, **functions)
    train("linear_classes", "multi:softprob", classes(y), {**forms, **old_forms}, num_class=4, **functions)
    train("linear_targets", "reg:squarederror", targets, **functions)


def all_of_lightgbm(cases):
    x = data(400)
    y = target(x) + x[:, 2] * 2

    def train(name, objective, y, **options):
        parameters = {"num_threads": 1, "verbose": -1, "num_leaves": 6, "linear_tree": True, "objective": objective}
        model = lightgbm.train({**parameters, **options}, lightgbm.Dataset(x, y), 4)
        rows = samples()
        file = f"{label(lightgbm, name)}.txt"
        model.save_model(cases.folder / file)
        cases.add(label(lightgbm, name), file, "lightgbm", rows, model.predict(rows))

    y = np.nan_to_num(y)
    train("linear", "regression", y)
    train("linear_binary", "binary", y > 1)
    train("linear_classes", "multiclass", classes(y), num_class=4)
    if lightgbm.__version__.startswith("4."):
        train("linear_dart", "regression", y, boosting="dart", drop_rate=0.5)
        train("linear_forest", "regression", y, boosting="rf", bagging_freq=1, bagging_fraction=0.6)


def all_of_scikit_learn(cases):
    import treelite
    from sklearn import ensemble

    x = data(400)
    y = target(x)
    x = np.nan_to_num(x)
    forest = {"n_estimators": 3, "max_depth": 4, "random_state": 1}

    def add(name, model, predict):
        rows = np.nan_to_num(samples())
        file = f"sk_{name}.tl"
        treelite.sklearn.import_model(model).serialize(str(cases.folder / file))
        cases.add(f"sk_{name}", file, "treelite_checkpoint", rows, predict(rows))

    model = ensemble.RandomForestRegressor(**forest).fit(x, np.stack([y, -y, y * 2], 1))
    add("targets", model, model.predict)
    classifier = ensemble.ExtraTreesClassifier(**forest).fit(x, np.stack([y > 1, classes(y)], 1))

    def probabilities(rows):
        # The first target has two classes, the second four.
        two, four = classifier.predict_proba(rows)
        return np.concatenate([two, np.zeros_like(two), four], axis=1)

    add("target_classes", classifier, probabilities)


def main():
    cases = Cases(sys.argv[1])
    others = cases.folder / "leaf_cases.json"
    if others.exists():
        versions = [label(library) for library in (xgboost, lightgbm)]
        known = json.loads(others.read_text())
        own = [*versions, "sk_"] if "--scikit-learn" in sys.argv else versions
        cases.all = [case for case in known if not any(case["file"].startswith(version) for version in own)]
    all_of_xgboost(cases)
    all_of_lightgbm(cases)
    if "--scikit-learn" in sys.argv:
        all_of_scikit_learn(cases)
    cases.save("leaf_cases.json")


if __name__ == "__main__":
    main()
