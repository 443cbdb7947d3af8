"""Times and events, in the forms that people keep them in."""

import numpy as np
import pandas as pd
import pytest

from estimators.survival_data import columns, make_data
from fcco.estimators import concordance_index
from fcco.estimators._survival import CoxRegressor
from fcco.estimators._survival_data import as_survival


def test_forms_of_y():
    _, time, event = make_data(80)
    structured = np.array(list(zip(event, time, strict=True)), dtype=[("dead", "?"), ("days", "<f8")])
    forms = [
        structured,
        structured[["days", "dead"]],
        np.array(list(zip(event, time, strict=True)), dtype=[("event", "<i8"), ("time", "<f8")]),
        columns(time, event),
        columns(time, event).tolist(),
        pd.DataFrame({"days": time, "dead": event.astype(int)}),
        pd.DataFrame({"dead": event, "days": time}),
        pd.DataFrame({"Event": event.astype(int), "Time": time}),
    ]
    for y in forms:
        found_time, found_event = as_survival(y)
        np.testing.assert_array_equal(found_time, time)
        np.testing.assert_array_equal(found_event, event)
        assert found_event.dtype == bool


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (columns(np.ones(4), [0, 0, 0, 0]), "no event: all 4 times are censored"),
        (columns(np.ones(4), [0, 1, 2, 1]), "events must be 0 or 1.*2"),
        (columns(np.ones(4), [2, 1, 2, 1]), "got 1 and 2: if 2 is the event, pass status == 2"),
        (
            pd.DataFrame({"time": range(4), "dead": pd.array([True, pd.NA, False, True], "boolean")}),
            "the events.*<NA> at position 1",
        ),
        (pd.DataFrame({"time": pd.array([1, 2, 3, pd.NA], object), "dead": 1}), "the times.*<NA> at position 3"),
        (columns([1.0, np.nan, 2.0, 3.0], np.ones(4)), "NaN"),
        (columns([1.0, 2.0], [1, 1]), "inconsistent"),
        (np.ones((4, 3)), r"got shape \(4, 3\)"),
        ((np.ones(4), np.ones(4)), r"got shape \(2, 4\): pass numpy.column_stack\(\[time, event\]\)"),
        (pd.DataFrame({"dead": [1, 0, 1, 1], "days": [5, 20, 7, 1]}), "got 5 in 'days'; the columns of y are"),
        (pd.DataFrame(np.ones((4, 3)), columns=list("abc")), "two columns.*'a', 'b', 'c'"),
        (pd.DataFrame({"t": pd.to_timedelta([1, 2, 3, 4], unit="D"), "e": 1}), r"must be numbers; got timedelta64\["),
        (
            pd.DataFrame({"t": pd.to_datetime(["2020-01-01"] * 4), "e": 1}),
            r"must be numbers; got datetime64\[.*divide by numpy.timedelta64",
        ),
        (columns([1.0, 0.0, -2.0, -3.0], np.ones(4)), "times of y must be at least 0; got -2.0 at position 2"),
        (pd.DataFrame({"time": [1, 2, 3, 4]}), r"two columns.*\['time'\]: if every time .* add a column of ones"),
        (None, "requires y"),
    ],
)
def test_bad_targets_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        CoxRegressor().fit(np.arange(8.0).reshape(4, 2), y)


def test_a_field_named_time_tells_the_other():
    y = np.array([(2.0, 1), (3.0, 0)], dtype=[("time", "<f8"), ("status", "<i8")])
    np.testing.assert_array_equal(as_survival(y), ([2.0, 3.0], [True, False]))


@pytest.mark.parametrize("kind", [np.array, pd.Series, list, lambda y: np.array(y)[:, None]])
@pytest.mark.parametrize("column", [[4.0, 2.0, 9.0, 5.0], [True, False, True, True], [1, 0, 1, 1]])
def test_one_column_is_refused(column, kind):
    """It may have times without events, or events without times; that all times are of events is to be said."""
    y, x = kind(column), np.array([1.0, 3.0, 2.0, 0.0])[:, None]
    for call in (lambda: CoxRegressor().fit(x, y), lambda: concordance_index(y, x[:, 0])):
        with pytest.raises(ValueError, match=r"got one column, .*column_stack\(\[time, numpy.ones\(len\(time\)\)\]\)"):
            call()


@pytest.mark.parametrize(
    ("strata", "error", "message"),
    [
        (pd.array(["a", pd.NA, "b", "a"], "string"), ValueError, "strata must not be missing; got <NA> at position 1"),
        (np.array(["a", 1, "a", 1], object), TypeError, "strata must be of one type.*got int and str.*astype"),
        (np.zeros((4, 2)), ValueError, r"Pass df.groupby\(\[...\]\).ngroup\(\) for several columns"),
    ],
)
def test_strata_that_cannot_be_told_apart_are_refused(strata, error, message):
    with pytest.raises(error, match=message):
        CoxRegressor().fit(np.arange(8.0).reshape(4, 2), columns(np.ones(4), np.ones(4)), strata=strata)


def test_missing_entries_are_refused():
    with pytest.raises(ValueError, match=r"entry must not be missing; got nan at position 2. Pass -numpy.inf"):
        CoxRegressor().fit(np.eye(4), columns(np.ones(4), np.ones(4)), entry=[0.0, 0.5, np.nan, 0.0])


def test_times_and_events_apart_are_explained():
    time, event, model = np.arange(4.0), np.ones(4), CoxRegressor()
    for method in (model.fit, model.score):
        with pytest.raises(TypeError, match=r"CoxRegressor takes two positional.*pass df\[\['time', 'event'\]\]"):
            method(np.eye(4), time, event)
    with pytest.raises(TypeError, match=r"takes two positional arguments, y and risk; got 3.*and not minus risks"):
        concordance_index(time, -time, event)
