"""The stores on a SQL database: common statements, and one small dialect a database."""
