"""Times and events, in the forms that people keep them in."""

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import DataConversionWarning

from estimators.survival_data import columns, make_data
from fcco.estimators._survival import CoxRegressor
from fcco.estimators._survival_data import as_survival


def test_forms_of_y():
    x, time, event = make_data(80)
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
    all_died = CoxRegressor().fit(x, time).coef_
    np.testing.assert_array_equal(all_died, CoxRegressor().fit(x, columns(time, np.ones(80))).coef_)
    with pytest.warns(DataConversionWarning, match="column-vector"):
        np.testing.assert_array_equal(CoxRegressor().fit(x, time[:, None]).coef_, all_died)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (columns(np.ones(4), [0, 0, 0, 0]), "no event: all 4 times are censored"),
        (columns(np.ones(4), [0, 1, 2, 1]), "events must be 0 or 1.*2"),
        (columns([1.0, np.nan, 2.0, 3.0], np.ones(4)), "NaN"),
        (columns([1.0, 2.0], [1, 1]), "inconsistent"),
        (np.ones((4, 3)), r"got shape \(4, 3\)"),
        ((np.ones(4), np.ones(4)), r"got shape \(2, 4\): pass numpy.column_stack\(\[time, event\]\)"),
        (pd.DataFrame({"dead": [1, 0, 1, 1], "days": [5, 20, 7, 1]}), "got 5 in 'days'; the columns of y are"),
        (pd.DataFrame(np.ones((4, 3)), columns=list("abc")), "two columns.*'a', 'b', 'c'"),
        (pd.DataFrame({"t": pd.to_timedelta([1, 2, 3, 4], unit="D"), "e": 1}), r"must be numbers; got timedelta64\["),
        (pd.to_datetime(["2020-01-01"] * 4), r"must be numbers; got datetime64\[.*divide by numpy.timedelta64"),
        (None, "requires y"),
    ],
)
def test_bad_targets_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        CoxRegressor().fit(np.arange(8.0).reshape(4, 2), y)


def test_a_field_named_time_tells_the_other():
    y = np.array([(2.0, 1), (3.0, 0)], dtype=[("time", "<f8"), ("status", "<i8")])
    np.testing.assert_array_equal(as_survival(y), ([2.0, 3.0], [True, False]))
