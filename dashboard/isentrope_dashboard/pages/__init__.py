"""The pages: what each reads from the server and shows, and the callbacks behind it."""
