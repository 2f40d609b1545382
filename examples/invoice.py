"""Invoices to typed records: a pydantic model is all that has to be written."""

from typing import Literal

from pydantic import BaseModel, Field

import ramet as rt

INVOICES = [
    "INVOICE No. 2024-117\nSeller: Miller Tools Ltd\nDate: 2024-03-05\nTotal due: 1249.50 EUR",
    "Invoice 88-C from Baker & Sons, 12 January 2025. Amount payable: USD 310.",
]


class Invoice(BaseModel):
    number: str = Field(max_length=20, description="the invoice number, as it is printed")
    seller: str = Field(max_length=40, description="the company that sent the invoice")
    total: float = Field(ge=0, lt=1_000_000, description="the total amount")
    currency: Literal["EUR", "USD", "GBP"]


for record in rt.extract(Invoice, INVOICES, prompt="Read the invoice."):
    print(record.status, Invoice.model_validate(record.value))
