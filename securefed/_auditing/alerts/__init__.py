"""Look at the data before any attack: rare categories, small parties, rows that dominate, keys, gaps and imbalance."""

from securefed._auditing.alerts.alert import PERSONAL, Alert, about_people
from securefed._auditing.alerts.checks import FEWEST, alerts
from securefed._auditing.alerts.data_sheet import DataSheet, data_sheet, sheet_lines
from securefed._auditing.alerts.table_facts import TableColumn, TableFacts, facts_of, facts_of_clients

__all__ = [
    "FEWEST",
    "PERSONAL",
    "Alert",
    "DataSheet",
    "TableColumn",
    "TableFacts",
    "about_people",
    "alerts",
    "data_sheet",
    "facts_of",
    "facts_of_clients",
    "sheet_lines",
]  # fmt: skip
