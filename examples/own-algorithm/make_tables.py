"""Draw the four tables of this example: who spends how much, at organisations that share customers.

python make_tables.py writes them beside it. Rows and columns overlap in part: a bank and its branch
know what a customer spends, a telecom and a retailer do not.
"""

import csv
from pathlib import Path

import numpy as np

CUSTOMERS = 120
HELD = {
    "bank": (range(0, 90), ("age", "income", "balance"), True),
    "branch": (range(30, 120), ("income", "loans"), True),
    "telecom": (range(0, 120), ("calls", "data"), False),
    "retailer": (range(20, 110), ("visits", "basket"), False),
}
COLUMNS = ("age", "income", "balance", "loans", "calls", "data", "visits", "basket")


def main() -> None:
    rng = np.random.default_rng(2026)
    x = np.array([45, 38, 12, 2, 150, 8, 6, 40.0]) * np.exp(rng.normal(0, 0.4, (CUSTOMERS, 8)))
    spend = x @ [0.1, 0.6, 0.3, -2.0, 0.02, 0.5, 3.0, 0.4] + rng.normal(0, 3, CUSTOMERS)
    for name, (rows, columns, labelled) in HELD.items():
        with (Path(__file__).parent / f"{name}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["customer", *columns, *["spend"] * labelled])
            for row in rows:
                values = [f"{x[row, COLUMNS.index(one)]:.2f}" for one in columns]
                out.writerow([row, *values, *[f"{spend[row]:.2f}"] * labelled])


if __name__ == "__main__":
    main()
