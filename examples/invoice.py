"""Invoices to typed records: a pydantic model is all that has to be written."""

from pydantic import BaseModel, Field

import ramet as rt

INVOICES = [
    "Invoice number: A-2024-117\nSeller: Miller Tools Ltd\nTotal: EUR 1249.50\nPlease pay within 30 days.",
    "Invoice number: 88-C\nSeller: Baker & Sons\nTotal: USD 310.00\nThank you!",
]


class Invoice(BaseModel):
    number: str = Field(max_length=20, description="the invoice number, as it is printed")
    seller: str = Field(max_length=40, description="the company that sent the invoice")
    total: str = Field(pattern=r"^[A-Z]{3} [0-9]{1,6}[.][0-9]{2}$", description="currency and amount")


for record in rt.extract(Invoice, INVOICES, prompt="Read the invoice."):
    print(record.status, record.value)
