"""`isentrope mcp`: runs, their health and their control as tools of an assistant, over the Model
Context Protocol.

- `server`: which tools a caller is offered, and the two transports
- `tools`: tools that read, and tools that push and revert a control; how they reach the REST API
and answer"""
