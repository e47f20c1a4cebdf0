"""Trains models whose leaves have several values, or whose results are linear: `python make_leaves.py models`.

The models in `models` were made with the packages of `make_models.py`; and with xgboost 2.1.4, lightgbm 3.3.5 and
numpy 1.26. The names of models have the version of their library. `--scikit-learn` adds those of scikit-learn, by Treelite 4.
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

    def train(name, objective, y, explained=False, **options):
        parameters = {"nthread": 1, "max_depth": 3, "seed": 1, "objective": objective, **options}
        model = xgboost.train(parameters, xgboost.DMatrix(x, y), 3)
        rows = samples()
        expected = model.predict(xgboost.DMatrix(rows))
        values = model.predict(xgboost.DMatrix(rows), pred_contribs=True) if explained else None
        for form, kind in (("json", "xgboost_json"), ("ubj", "xgboost_ubj")):
            file = f"{label(xgboost, name)}.{form}"
            model.save_model(cases.folder / file)
            cases.add(f"{label(xgboost, name)}_{form}", file, kind, rows, expected, values)

    vectors = {"multi_strategy": "multi_output_tree", "tree_method": "hist"}
    train("vectors", "reg:squarederror", targets, **vectors)
    train("vector_classes", "multi:softprob", classes(y), num_class=4, **vectors)
    train("vector_labels", "binary:logistic", targets > 1, **vectors)


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
    if "--scikit-learn" in sys.argv:
        all_of_scikit_learn(cases)
    cases.save("leaf_cases.json")


if __name__ == "__main__":
    main()
