# The files of the page to chat with, as strings of a header that the server includes.
foreach(name index.html style.css storage.js markdown.js inline.js render.js api.js app.js)
  string(MAKE_C_IDENTIFIER ${name} variable)
  file(READ ${CMAKE_CURRENT_SOURCE_DIR}/src/server/page/${name} ${variable})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
    ${CMAKE_CURRENT_SOURCE_DIR}/src/server/page/${name})
endforeach()
configure_file(cmake/page_files.h.in page/page_files.h @ONLY)
target_include_directories(nanovllm_server PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/page)
