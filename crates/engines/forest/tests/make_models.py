"""Trains forests of every kind, and writes what their own libraries predict: `python make_models.py FOLDER`.

Needs numpy, xgboost-cpu, lightgbm, scikit-learn and treelite. The models in `models` were made with xgboost 3.2.0, lightgbm 4.7.0,
scikit-learn 1.9.1 and treelite 4.8.1; `--binary` adds models in XGBoost's old binary form, which needs xgboost 2.1. `--double` reads
the models of the folder again, also those of `make_leaves.py`, and writes what they predict for features in double precision.
"""

import json
import sys
from pathlib import Path

import numpy as np
import xgboost

FEATURES = 8
CATEGORICAL = [0, 1]
#: Categories that no model knows, and fractions.
ODD = [-1, -0.5, 500, 2.7, 1e30]

rng = np.random.default_rng(7)


class Cases:
    """Models with rows and what is expected for them."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)
        self.all = []

    def add(self, name, file, kind, rows, expected, explained=None):
        def lists(values):
            return np.asarray(values, dtype=np.float64).reshape(len(rows), -1).tolist()

        self.all.append(
            {
                "name": name,
                "file": file,
                "model_type": kind,
                "rows": [[None if np.isnan(value) else float(value) for value in row] for row in rows],
                "expected": lists(expected),
                "explained": None if explained is None else lists(explained),
            }
        )

    def save(self, name):
        text = json.dumps(self.all, separators=(",", ":"))
        (self.folder / name).write_text(text.replace("},{", "},\n{") + "\n")


def data(count, categorical=False):
    x = rng.normal(size=(count, FEATURES)).astype(np.float32).round(3)
    if categorical:
        x[:, 0] = rng.integers(0, 70, count)
        x[:, 1] = rng.integers(0, 5, count)
    x[rng.random(x.shape) < 0.1] = np.nan
    return x


def target(x):
    x = np.nan_to_num(x)
    return x[:, 2] + x[:, 3] ** 2 + 0.1 * x[:, 0] % 3


def samples(categorical=False):
    rows = data(14, categorical)
    rows[-1] = 0
    if categorical:
        rows[: len(ODD), 0] = ODD
    return rows


def classes(y):
    return np.clip(y, 0, 3.9).astype(int)


def train_xgboost(cases, name, parameters, y, x, rounds=3, categorical=False, explained=True, forms=("json", "ubj")):
    types = ["c" if feature in CATEGORICAL else "q" for feature in range(FEATURES)] if categorical else None

    def matrix(x, y=None):
        return xgboost.DMatrix(x, y, feature_types=types, enable_categorical=categorical)

    defaults = {"nthread": 1, "max_depth": 4, "seed": 1}
    model = xgboost.train({**defaults, **parameters}, matrix(x, y), rounds)
    rows = samples(categorical)
    expected = model.predict(matrix(rows))
    values = model.predict(matrix(rows), pred_contribs=True) if explained else None
    for form in forms:
        file = f"{name}.{form}"
        model.save_model(cases.folder / file)
        kind = {"json": "xgboost_json", "ubj": "xgboost_ubj", "deprecated": "xgboost"}[form]
        cases.add(f"{name}_{form}", file, kind, rows, expected, values)


def all_of_xgboost(cases, forms):
    x = data(400)
    y = target(x)

    def train(name, objective, y, **options):
        parameters = {key: value for key, value in options.items() if key not in ("rounds", "explained")}
        more = {key: options[key] for key in ("rounds", "explained") if key in options}
        train_xgboost(cases, "xgb_" + name, {"objective": objective, **parameters}, y, x, forms=forms, **more)

    train("regression", "reg:squarederror", y + 100)
    train("base_score", "reg:squarederror", y, base_score=0.7)
    train("logistic", "binary:logistic", y > 1, base_score=0.3)
    train("logit", "binary:logitraw", y > 1)
    train("hinge", "binary:hinge", y > 1, explained=False)
    train("classes", "multi:softprob", classes(y), num_class=4)
    train("poisson", "count:poisson", np.abs(y).astype(int))
    train("gamma", "reg:gamma", np.abs(y) + 0.1)
    train("dart", "binary:logistic", y > 1, booster="dart", rate_drop=0.4, one_drop=1, explained=False)
    train("parallel", "reg:squarederror", y, num_parallel_tree=3, subsample=0.5, rounds=2)
    if "json" in forms:
        train("quantile", "reg:quantileerror", y, quantile_alpha=0.7)
        train("targets", "reg:squarederror", np.stack([y, -y, y * 2], 1))
        x = data(400, categorical=True)
        parameters = {"objective": "binary:logistic", "max_cat_to_onehot": 4, "tree_method": "hist"}
        train_xgboost(cases, "xgb_categories", parameters, target(x) > 1, x, categorical=True)


def all_of_lightgbm(cases):
    import lightgbm

    def train(name, objective, y, x, categorical=False, **parameters):
        features = CATEGORICAL if categorical else []
        defaults = {"num_threads": 1, "verbose": -1, "num_leaves": 9, "min_data_in_leaf": 5}
        sample = lightgbm.Dataset(x, y, categorical_feature=features)
        model = lightgbm.train({**defaults, "objective": objective, **parameters}, sample, 3)
        rows = samples(categorical)
        explained = model.predict(rows, pred_contrib=True)
        if parameters.get("boosting") == "rf":
            # Its explanations are of the sum of the trees, its results their mean.
            explained = explained / 3
        model.save_model(cases.folder / f"lgb_{name}.txt")
        cases.add(f"lgb_{name}", f"lgb_{name}.txt", "lightgbm", rows, model.predict(rows), explained)

    x = data(400)
    y = target(x)
    forest = {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}
    train("regression", "regression", y, x)
    train("square_roots", "regression", np.abs(y), x, reg_sqrt=True)
    train("binary", "binary", y > 1, x, sigmoid=1.7)
    train("classes", "multiclass", classes(y), x, num_class=4)
    train("one_vs_all", "multiclassova", classes(y), x, num_class=4)
    train("poisson", "poisson", np.abs(y).astype(int), x)
    train("cross_entropy", "cross_entropy", np.clip(np.abs(y) / 9, 0, 1), x)
    train("cross_entropy_lambda", "cross_entropy_lambda", np.clip(np.abs(y) / 9, 0, 1), x)
    train("huber", "huber", y, x)
    train("forest", "regression", y, x, **forest)
    train("forest_binary", "binary", y > 1, x, **forest)
    train("forest_classes", "multiclass", classes(y), x, num_class=4, **forest)
    train("dart", "binary", y > 1, x, boosting="dart", drop_rate=0.5)
    train("stump", "regression", y, x, num_leaves=2)
    train("constant", "regression", np.full(len(x), 3.5), x)
    train("nothing_missing", "regression", y, x, use_missing=False)
    sparse = np.where(np.isnan(x), 0, x) * (rng.random(x.shape) < 0.7)
    train("zero_missing", "regression", y, sparse, zero_as_missing=True)
    x = data(400, categorical=True)
    categories = {"min_data_per_group": 5, "cat_smooth": 1, "max_cat_to_onehot": 2}
    train("categories", "binary", target(x) > 1, x, categorical=True, **categories)


def all_of_treelite(cases):
    import treelite
    from sklearn import ensemble

    def train(name, model, y, predict="predict"):
        model.fit(np.nan_to_num(x), y)
        rows = np.nan_to_num(samples())
        expected = getattr(model, predict)(rows)
        if predict == "score_samples":
            expected = -expected
        if predict == "predict_proba" and isinstance(model, ensemble.GradientBoostingClassifier | Histogram):
            # One tree for both classes, which gives the second one's probability.
            expected = expected[:, 1] if expected.shape[1] == 2 else expected
        treelite.sklearn.import_model(model).serialize(str(cases.folder / f"sk_{name}.tl"))
        cases.add(f"sk_{name}", f"sk_{name}.tl", "treelite_checkpoint", rows, expected)

    Histogram = ensemble.HistGradientBoostingClassifier
    x = data(400)
    y = target(x)
    forest = {"n_estimators": 4, "max_depth": 4, "random_state": 1}
    train("forest", ensemble.RandomForestRegressor(**forest), y)
    train("forest_binary", ensemble.RandomForestClassifier(**forest), y > 1, "predict_proba")
    train("forest_classes", ensemble.RandomForestClassifier(**forest), classes(y), "predict_proba")
    train("extra_trees", ensemble.ExtraTreesClassifier(**forest), classes(y), "predict_proba")
    train("boosting", ensemble.GradientBoostingRegressor(n_estimators=3), y)
    train("boosting_binary", ensemble.GradientBoostingClassifier(n_estimators=3), y > 1, "predict_proba")
    train("boosting_classes", ensemble.GradientBoostingClassifier(n_estimators=3), classes(y), "predict_proba")
    train("histograms", ensemble.HistGradientBoostingRegressor(max_iter=3), y)
    train("histograms_binary", Histogram(max_iter=3), y > 1, "predict_proba")
    train("isolation", ensemble.IsolationForest(n_estimators=4, max_samples=32), y, "score_samples")
    for file in ("xgb_categories.json", "xgb_classes.json", "lgb_categories.txt", "lgb_binary.txt"):
        frontend = treelite.frontend
        load = frontend.load_xgboost_model if file.endswith(".json") else frontend.load_lightgbm_model
        name = "tl_" + Path(file).stem
        load(str(cases.folder / file)).serialize(str(cases.folder / f"{name}.tl"))
        source = next(case for case in cases.all if case["file"] == file)
        more = {"name": name, "file": f"{name}.tl", "model_type": "treelite_checkpoint", "explained": None}
        case = {**source, **more}
        if file == "lgb_categories.txt":
            # For Treelite, -0.5 is no category; for LightGBM it is category 0.
            at = ODD.index(-0.5)
            case["rows"] = case["rows"][:at] + case["rows"][at + 1 :]
            case["expected"] = case["expected"][:at] + case["expected"][at + 1 :]
        cases.all.append(case)


def near(thresholds):
    """Rows with each threshold of a feature, and with its neighbours in double precision."""
    rows = []
    for feature, threshold in thresholds:
        for value in (threshold, np.nextafter(threshold, -np.inf), np.nextafter(threshold, np.inf)):
            rows.append(np.nan_to_num(samples())[0].astype(np.float64))
            rows[-1][feature] = value
    return np.array(rows)


def thresholds_of_treelite(model):
    nodes = [node for tree in json.loads(model.dump_as_json())["trees"] for node in tree["nodes"]]
    return [(node["split_feature_id"], node["threshold"]) for node in nodes if "threshold" in node]


def all_in_double(cases):
    import lightgbm
    import treelite

    def bits(values):
        return np.asarray(values, dtype=np.float64).reshape(len(values), -1).view(np.uint64).tolist()

    def add(file, kind, thresholds, predict, differs=True):
        rows = near(thresholds[:12])
        expected = predict(rows)
        # In single precision, many of the rows are the same.
        assert (predict(rows.astype(np.float32).astype(np.float64)) != expected).any() == differs
        cases.all.append({"file": file, "model_type": kind, "rows": bits(rows), "expected": bits(expected)})

    for name in ("lgb_regression", "lgb_classes", "lgb_dart", "lightgbm4.7.0_linear"):
        file = f"{name}.txt"
        model = lightgbm.Booster(model_file=str(cases.folder / file))
        nodes = model.trees_to_dataframe().dropna(subset=["threshold"])
        features = [int(feature.removeprefix("Column_")) for feature in nodes["split_feature"]]
        add(file, "lightgbm", list(zip(features, nodes["threshold"].astype(float), strict=True)), model.predict)
    for name in ("sk_histograms", "sk_boosting_classes", "sk_forest_binary"):
        checkpoint = treelite.Model.deserialize(str(cases.folder / f"{name}.tl"))

        def predict(rows, checkpoint=checkpoint):
            return treelite.gtil.predict(checkpoint, rows)

        add(f"{name}.tl", "treelite_checkpoint", thresholds_of_treelite(checkpoint), predict)
    # XGBoost rounds the features itself.
    model = xgboost.Booster(model_file=str(cases.folder / "xgb_logistic.json"))
    thresholds = thresholds_of_treelite(treelite.frontend.from_xgboost(model))
    add("xgb_logistic.json", "xgboost_json", thresholds, lambda rows: model.predict(xgboost.DMatrix(rows)), False)


def main():
    cases = Cases(sys.argv[1])
    if "--double" in sys.argv:
        all_in_double(cases)
        cases.save("double_cases.json")
        return
    if "--binary" in sys.argv:
        all_of_xgboost(cases, ("deprecated",))
        cases.save("binary_cases.json")
        return
    all_of_xgboost(cases, ("json", "ubj"))
    all_of_lightgbm(cases)
    all_of_treelite(cases)
    cases.save("cases.json")


if __name__ == "__main__":
    main()
