"""Simulated tables with the columns of two public tables, so that an example needs no download.

- ``bike``: hourly bike rentals, as in *Bike Sharing* (Fanaee-T & Gama 2013; hour.csv of the UCI repository)
- ``diamonds``: prices of diamonds, as in the R package ggplot2 (diamonds.csv)

Names, units, ranges and main effects of the columns are those of the originals; every value is drawn at random.
"""

import numpy as np
import pandas as pd

HOURS = 17_379  # number of hours in the original table, two years
PROFILES = {  # mean rentals in each hour, on non-working days (0) and working days (1)
    0: "91 70 53 26 8 9 19 43 106 172 256 315 366 373 365 359 353 324 281 232 175 142 116 86",
    1: "37 17 9 5 5 25 102 291 477 242 135 158 201 198 184 201 293 525 492 348 250 186 138 89",
}
CUTS = {"Fair": -0.1, "Good": -0.02, "Very Good": 0.02, "Premium": 0.04, "Ideal": 0.06}
COLOURS = dict(zip("DEFGHIJ", (0.21, 0.15, 0.11, 0.05, -0.04, -0.17, -0.3), strict=True))
CLARITIES = {"I1": -0.71, "SI2": -0.28, "SI1": -0.11, "VS2": 0.04, "VS1": 0.11, "VVS2": 0.24, "VVS1": 0.31, "IF": 0.41}


def bike(n_rows, seed=0):
    """Return a table of n_rows random hours, sorted by time; ``dteday`` is text."""
    rng = np.random.default_rng(seed)
    instant = np.sort(rng.choice(min(HOURS, 12 * n_rows), n_rows, replace=False))
    time = pd.Series(pd.Timestamp("2011-01-01") + pd.to_timedelta(instant, unit="h"))
    year, day, hour = time.dt.year - 2011, time.dt.day_of_year, time.dt.hour
    weekday = (time.dt.day_of_week + 1) % 7
    workingday = weekday.between(1, 5).astype(int)
    weather = pd.Series(rng.choice([1, 2, 3], n_rows, p=[0.66, 0.26, 0.08]))
    season = -np.cos(2 * np.pi * (day - 20) / 365)
    temp = 0.5 + 0.26 * season + 0.06 * np.sin(2 * np.pi * (hour - 9) / 24)
    temp = (temp + 0.05 * rng.normal(size=n_rows)).clip(0, 1)
    profile = np.array([[int(value) for value in PROFILES[k].split()] for k in (0, 1)])[workingday, hour]
    mean = profile * (0.4 + 1.2 * temp) * (0.78 + 0.45 * year) * np.array([1.08, 0.95, 0.6])[weather - 1]
    count = rng.negative_binomial(8, 8 / (8 + mean)) + 1
    registered = rng.binomial(count, np.where(workingday == 1, 0.86, 0.68))
    columns = {
        "instant": instant + 1,
        "dteday": time.dt.strftime("%Y-%m-%d"),
        "season": (time.dt.month % 12) // 3 + 1,
        "yr": year,
        "mnth": time.dt.month,
        "hr": hour,
        "holiday": 0,
        "weekday": weekday,
        "workingday": workingday,
        "weathersit": weather,
        "temp": temp.round(2),
        "atemp": (0.92 * temp + 0.02 * rng.normal(size=n_rows)).clip(0, 1).round(4),
        "hum": (0.63 - 0.08 * season + 0.17 * rng.normal(size=n_rows)).clip(0, 1).round(2),
        "windspeed": rng.gamma(2.5, 0.076, n_rows).round(4),
        "casual": count - registered,
        "registered": registered,
        "cnt": count,
    }
    return pd.DataFrame(columns)


def diamonds(n_rows, seed=0):
    """Return a table of n_rows diamonds; ``price`` is skewed, and its standard deviation grows with its mean."""
    rng = np.random.default_rng(seed)
    carat = np.exp(-0.39 + 0.58 * rng.normal(size=n_rows)).clip(0.2, 5).round(2)
    cut, colour, clarity = (
        rng.choice(list(levels), n_rows, p=shares)
        for levels, shares in (
            (CUTS, [0.03, 0.09, 0.22, 0.26, 0.40]),
            (COLOURS, [0.13, 0.18, 0.18, 0.21, 0.15, 0.10, 0.05]),
            (CLARITIES, [0.01, 0.17, 0.24, 0.23, 0.15, 0.1, 0.07, 0.03]),
        )
    )
    effects = sum(
        np.array([levels[value] for value in values])
        for levels, values in ((CUTS, cut), (COLOURS, colour), (CLARITIES, clarity))
    )
    price = np.exp(8.46 + 1.88 * np.log(carat) + effects + 0.13 * rng.normal(size=n_rows)).clip(326, 18_823)
    depth = (61.75 + 1.4 * rng.normal(size=n_rows)).round(1)
    x = 6.45 * carat ** (1 / 3) * (1 + 0.01 * rng.normal(size=n_rows))
    y = x * (1 + 0.005 * rng.normal(size=n_rows))
    columns = {"carat": carat, "cut": cut, "color": colour, "clarity": clarity, "depth": depth}
    columns |= {"table": rng.normal(57.5, 2.2, n_rows).round(), "price": price.astype(int)}
    columns |= {"x": x.round(2), "y": y.round(2), "z": (depth / 100 * (x + y) / 2).round(2)}
    return pd.DataFrame(columns)
