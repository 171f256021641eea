// A file of its own: the content security policy allows no inline script.

// Swagger UI fills forms with the examples. A filter or cursor that nobody chose would find nothing, so that an optional
// parameter shows its example in words and begins empty.
function withEmptyOptions(description) {
  for (const path of Object.values(description.paths)) {
    for (const operation of Object.values(path)) {
      for (const parameter of operation.parameters ?? []) {
        if (!parameter.required && parameter.example != null) {
          parameter.description += ` Example: \`${parameter.example}\``;
          delete parameter.example;
        }
      }
    }
  }
  return description;
}

SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#reference",
  deepLinking: true,
  defaultModelsExpandDepth: 0, // schemas are listed, but folded
  displayRequestDuration: true,
  persistAuthorization: false, // a token never goes into the browser's storage
  showExtensions: true, // x-scope: what a token needs for the operation
  validatorUrl: null, // would send the description's address to swagger.io
  plugins: [
    {
      statePlugins: {
        spec: { wrapActions: { updateJsonSpec: (update) => (description) => update(withEmptyOptions(description)) } },
      },
    },
  ],
});
