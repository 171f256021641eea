// A file of its own: the content security policy allows no inline script.

document.documentElement.classList.toggle("dark-mode", matchMedia("(prefers-color-scheme: dark)").matches);
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#reference",
  deepLinking: true,
  defaultModelsExpandDepth: 0, // schemas are listed, but folded
  displayRequestDuration: true,
  persistAuthorization: false, // a token never goes into the browser's storage
  showExtensions: true, // x-scope: what a token needs for the operation
  validatorUrl: null, // would send the description's address to swagger.io
});
