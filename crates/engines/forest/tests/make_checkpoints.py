"""Saves forests as checkpoints of the installed release of Treelite: `python make_checkpoints.py models`.

Needs the packages of `make_models.py`, whose models it reads. The checkpoints in `models` were made with Treelite 2.4.0, 3.0.0,
3.9.1 and 4.0.0, each in an environment of its own, with scikit-learn 1.2.2, or 1.5.2 for 3.9.1 and 4.0.0.
"""

import json
import sys

import numpy as np
import treelite
from make_models import FEATURES, ODD, Cases, classes, data, samples, target
from sklearn import ensemble

VERSION = treelite.__version__


def load(file):
    """A model of LightGBM, by the interface of this release."""
    if hasattr(treelite.frontend, "load_lightgbm_model"):
        return treelite.frontend.load_lightgbm_model(str(file))
    return treelite.Model.load(str(file), model_format="lightgbm")


def loaded(cases, known):
    """Checkpoints of models of LightGBM, whose text every release reads."""
    for file in ("lgb_categories.txt", "lgb_binary.txt", "lgb_one_vs_all.txt"):
        source = next(case for case in known if case["file"] == file)
        case = {**source, "name": f"tl{VERSION}_{file[4:-4]}", "model_type": "treelite_checkpoint", "explained": None}
        case["file"] = case["name"] + ".tl"
        load(cases.folder / file).serialize(str(cases.folder / case["file"]))
        if file == "lgb_categories.txt":
            # For Treelite, -0.5 is no category; for LightGBM it is category 0.
            at = ODD.index(-0.5)
            case["rows"] = case["rows"][:at] + case["rows"][at + 1 :]
            case["expected"] = case["expected"][:at] + case["expected"][at + 1 :]
        cases.all.append(case)


def trained(cases):
    x = data(400)
    y = target(x)

    def train(name, model, y, predict="predict"):
        model.fit(np.nan_to_num(x), y)
        # The attribute that old releases of Treelite read.
        model.n_features_ = FEATURES
        rows = np.nan_to_num(samples())
        checkpoint = treelite.sklearn.import_model(model)
        expected = treelite.gtil.predict(checkpoint, rows) if predict == "gtil" else getattr(model, predict)(rows)
        if name == "boosting_binary" or (name == "forest_binary" and not VERSION.startswith("4")):
            # One value for both classes, which is the second one's probability.
            expected = expected[:, 1]
        file = f"tl{VERSION}_{name}.tl"
        checkpoint.serialize(str(cases.folder / file))
        cases.add(file[:-3], file, "treelite_checkpoint", rows, expected)

    forest = {"n_estimators": 3, "max_depth": 4, "random_state": 1}
    boosting = {"n_estimators": 3, "init": "zero"}
    train("forest", ensemble.RandomForestRegressor(**forest), y)
    train("forest_binary", ensemble.RandomForestClassifier(**forest), y > 1, "predict_proba")
    train("forest_classes", ensemble.RandomForestClassifier(**forest), classes(y), "predict_proba")
    train("boosting_binary", ensemble.GradientBoostingClassifier(**boosting), y > 1, "predict_proba")
    train("boosting_classes", ensemble.GradientBoostingClassifier(**boosting), classes(y), "predict_proba")
    if VERSION.startswith("3.9"):
        # The scores of this release differ from scikit-learn's by some percent.
        train("isolation", ensemble.IsolationForest(n_estimators=3, max_samples=32, random_state=1), y, "gtil")
        train("histograms", ensemble.HistGradientBoostingRegressor(max_iter=3), y)


def main():
    cases = Cases(sys.argv[1])
    known = json.loads((cases.folder / "cases.json").read_text())
    others = cases.folder / "checkpoint_cases.json"
    if others.exists():
        prefix = f"tl{VERSION}_"
        cases.all = [case for case in json.loads(others.read_text()) if not case["name"].startswith(prefix)]
    loaded(cases, known)
    trained(cases)
    cases.save("checkpoint_cases.json")


if __name__ == "__main__":
    main()
