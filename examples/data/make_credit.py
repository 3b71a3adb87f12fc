"""Cut the credit default table into the tables of a bank, a telecom and a retailer.

    python examples/data/make_credit.py [FOLDER]

FOLDER holds `credit_default/credit_default.csv.gz` (default: the setting INTARSIA_DATA). Writes
`credit/{bank,telecom,retailer}.csv.gz` beside this file, always the same bytes of text. Source:
UCI, "Default of Credit Card Clients" (Yeh and Lien, 2009), CC BY 4.0.

Who is whose customer, and who knows which label, is decided by a hash of the customer's number, so
that it can be checked for a single row:

- a customer is at the bank with 67 %, at the telecom with 63 %, at the retailer with 60 %,
  independently; the 5 % who are nobody's customers are left out;
- the bank knows of all its customers whether they defaulted; the telecom and the retailer know it
  of their customers who are not the bank's, and of a quarter of the others. So every customer has
  a label at one party at least, and no party can train on all of its rows but the bank.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import sys
from pathlib import Path

LABEL = "default.payment.next.month"
SHARE = {"bank": 0.67, "telecom": 0.63, "retailer": 0.60}
ALSO_KNOWN = 0.25  # labels of the bank's customers that another party knows too
COLUMNS = {
    # AGE is at all three, BILL_AMT1 at the bank and the telecom, SEX at the telecom and the
    # retailer: identical copies. PAY_* is the repayment status of a month (PAY_0: the last one).
    "bank": "LIMIT_BAL AGE PAY_2 PAY_3 PAY_4 BILL_AMT1 BILL_AMT2 BILL_AMT3",
    "telecom": "SEX EDUCATION MARRIAGE AGE PAY_0 BILL_AMT1",
    "retailer": "SEX AGE PAY_5 PAY_6 BILL_AMT4 BILL_AMT5 BILL_AMT6 "
    "PAY_AMT1 PAY_AMT2 PAY_AMT3 PAY_AMT4 PAY_AMT5 PAY_AMT6",
}


def fraction(purpose: str, customer: str) -> float:
    """Return a number in [0, 1) that depends on the two texts alone."""
    digest = hashlib.blake2b(f"{purpose}:{customer}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2**56


def tables(rows: list[dict[str, str]]) -> dict[str, list[list[str]]]:
    """Return each party's header and rows, by customer number."""
    parties = {name: [["customer", *COLUMNS[name].split(), "default"]] for name in SHARE}
    for row in rows:
        customer = row["ID"]
        for name, table in parties.items():
            if fraction(name, customer) >= SHARE[name]:
                continue
            alone = fraction("bank", customer) >= SHARE["bank"]
            known = name == "bank" or alone or fraction(f"{name} label", customer) < ALSO_KNOWN
            values = [f"{float(row[column]):.0f}" for column in COLUMNS[name].split()]
            table.append([customer, *values, row[LABEL] if known else ""])
    return parties


def main() -> None:
    """Write the three tables."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("INTARSIA_DATA", beside))
    with gzip.open(folder / "credit_default" / "credit_default.csv.gz", "rt") as lines:
        rows = list(csv.DictReader(lines))
    target = Path(__file__).parent / "credit"
    target.mkdir(exist_ok=True)
    for name, table in tables(rows).items():
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(table)
        (target / f"{name}.csv.gz").write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))
        print(f"{name}: {len(table) - 1} customers, {len(table[0]) - 2} columns")


if __name__ == "__main__":
    main()
